"""How PyTorch comes to attention: operators, their gradients and transformations, and the ways past the dispatcher."""
