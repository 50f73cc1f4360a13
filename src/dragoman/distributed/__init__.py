"""Gradients over the network, inside a process group.

rendezvous      where the processes of one machine meet
world           who am I among how many, on which device
gradient_sync   strategies that make one gradient out of every rank's
traffic         bytes counted on the wire
"""
