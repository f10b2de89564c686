"""Side-by-side measurements: `hatch run bench NAME`."""
