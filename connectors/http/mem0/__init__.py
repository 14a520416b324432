"""The REST interface of mem0, as far as it maps: its clients try recallflow by changing a URL."""
