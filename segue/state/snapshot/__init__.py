"""Snapshots on disk: a folder of complete, checked, claimable request states; bytes and files, no tensors or pools."""
