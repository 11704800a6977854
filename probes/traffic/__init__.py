"""Traffic: who arrives when. Scripts from files, generators by name, random fillers. Data only; nothing runs here."""
