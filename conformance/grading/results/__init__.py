"""Write the results of grading: pages, tables and files for platforms, each a pure function of grades."""
