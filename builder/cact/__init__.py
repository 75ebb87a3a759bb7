"""The `.cact` container: layouts of all three tags, reader, writer, CQ codes, tokenizer blob."""
