"""What came out of runs: results as files, tables, figures and verdicts in several formats."""
