from .dataset import write_dataset as write_dataset
from .entries import load as load
from .site import write_board as write_board
