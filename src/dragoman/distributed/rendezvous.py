"""Where the processes of one machine meet. Free of torch: who starts them need not import it."""

from typing import Final

RENDEZVOUS_VARIABLE: Final = "DRAGOMAN_RENDEZVOUS"
"""Names the file through which the processes of a run find each other; set by launch.py."""
