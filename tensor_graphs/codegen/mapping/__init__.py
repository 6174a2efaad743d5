"""mapping: each form in which a nest of stages becomes the loops of a kernel, and where its values are computed."""
