"""What the suite costs."""
