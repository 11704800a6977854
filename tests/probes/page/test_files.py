"""The files asked for beside a run: refused early, written whole."""

from __future__ import annotations

import pytest

from detharness.errors import UsageError
from detharness.probes.page.files import SummaryFiles
from detharness.probes.page.junit import junit_xml
from detharness.probes.page.markdown import markdown_summary


def test_only_what_was_asked_for_is_written(server_report, tmp_path):
    files = SummaryFiles(markdown=tmp_path / "run.md")
    files.check()
    files.write(server_report)
    assert [path.name for path in tmp_path.iterdir()] == ["run.md"]
    assert (tmp_path / "run.md").read_text() == markdown_summary(server_report)
    SummaryFiles(junit=tmp_path / "run.xml").write(server_report)
    assert (tmp_path / "run.xml").read_bytes() == junit_xml(server_report)


def test_one_file_cannot_be_both(tmp_path):
    with pytest.raises(UsageError, match="both name"):
        SummaryFiles(junit=tmp_path / "a", markdown=tmp_path / ".." / tmp_path.name / "a").check()


def test_a_place_that_cannot_be_written_is_refused_by_its_option(tmp_path):
    with pytest.raises(UsageError, match="--markdown"):
        SummaryFiles(markdown=tmp_path / "missing" / "a").check()
