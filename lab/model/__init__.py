"""What programs take on devices that are not there: compiled ahead, and modelled."""
