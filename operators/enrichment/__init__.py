"""What models behind an API are asked, and what of their answers is kept."""
