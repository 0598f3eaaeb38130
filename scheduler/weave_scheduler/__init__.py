"""The deciding side of Weave RT: reads a spec, decides who runs when, runs it and reports.

The deciding parts (``units``, ``laws``, ``spec``, ``events``, ``commands``, ``state``) are pure and
import neither the runtime nor torch; ``live`` is the loop around them that moves real state.
"""
