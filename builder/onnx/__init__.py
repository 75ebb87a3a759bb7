"""A container's model as an ONNX graph, for runtimes that Saguaro did not write."""
