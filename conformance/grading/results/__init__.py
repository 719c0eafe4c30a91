"""What grading leaves behind: pages, tables and what other platforms read, each a pure function of grades."""
