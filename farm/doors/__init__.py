"""The doors: what people may write in inventory, profiles and model specs, as pydantic models.

Only the loaders (inventory.py, profiles.py, specs.py) come here, and only when there is a file to check, since
importing pydantic takes longer than the rest of a small sweep's start. Inside the farm plain dataclasses are used.
"""
