"""What is HTTP and the same for every adapter: client addresses, features, headers, rejections."""
