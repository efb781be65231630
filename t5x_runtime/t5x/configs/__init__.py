"""gin files."""
