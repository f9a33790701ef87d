"""A probe of Vulkan: a recorded program as compute shaders, with Mesa's lavapipe as the device."""
