"""The causal depthwise convolution before a recurrent layer, and its state."""
