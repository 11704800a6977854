"""What a run leaves for people: a page, a summary to paste, test cases for CI. All are made of report.json alone."""
