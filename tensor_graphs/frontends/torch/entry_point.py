"""entry_point: registers the backend "tensor_graphs", once, even if several threads look it up first.

torch would register what each thread has loaded, and refuses the second. The body of a module runs once; threads wait for it."""

from torch._dynamo.backends.registry import register_backend

from tensor_graphs.frontends.torch.backend import tensor_graphs

register_backend(tensor_graphs, name="tensor_graphs")
registered = None
"""the value of the entry point: torch's registry registers nothing for None, and reads what is registered"""
