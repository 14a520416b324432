"""Analysis of text in any language: words, stems, language detection, and the intent of questions.

The data of each language is a table (`tables/*.toml`). The analysis is deterministic and needs no network. It depends
on the text alone, and on an assumed language if the text's own is unclear."""
