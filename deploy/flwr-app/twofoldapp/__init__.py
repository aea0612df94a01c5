"""The study as an app of Flower's own."""
