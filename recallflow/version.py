"""The version, apart from what the package exports: whoever shows it depends on nothing."""

__version__ = "0.1.0"
