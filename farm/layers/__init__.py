"""Which layer broke: every intermediate tensor of a failing model, on the real device, against this host's CPU.

view     which tensors of a graph can be watched, and who feeds whom
expose   a copy of the model whose chosen tensors are extra outputs     cut   one-op and prefix models
bench    run rewritten models through a Session, count the runs
sweep    all chunks on the device and on this CPU → numbers per layer
locate   the source rule, what is masked, what is inherited      confirm  prefix and single-op run, cuts when perturbed
study    the whole of it for one model, device and config → Study, which the output formats read
"""
