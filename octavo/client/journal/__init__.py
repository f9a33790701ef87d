"""The client that keeps all open requests, above the engines that compute them."""
