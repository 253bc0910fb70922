"""Sequential Monte Carlo: pure functions on tensors. No model, no clock, no input or output."""
