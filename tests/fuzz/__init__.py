"""Drivers that try hostile input for as long as they are given."""
