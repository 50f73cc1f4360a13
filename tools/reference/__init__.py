"""Pages of the site that are made from the code, each by a module of this package."""
