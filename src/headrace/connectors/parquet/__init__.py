"""Files that stand for batches: how they are written, which of them count, and how small ones become large ones."""
