"""REST interface of mem0, as far as it maps: its clients can use recallflow by changing a URL."""
