"""The one source, its connectors and the parsing of records."""
