"""Ways to reach a device. `transport: adb` in the inventory is `farm/transports/adb.py`."""
