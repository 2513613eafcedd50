"""On a GPU: kernels compiled, kept, loaded and launched; attention and its gradients by them."""
