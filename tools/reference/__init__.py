"""Pages of docs/reference that are written from the code, each by a module of this package."""
