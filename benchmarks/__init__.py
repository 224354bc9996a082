"""Measurements that end in one JSON object with the machine and the commit; README quotes only such files."""
