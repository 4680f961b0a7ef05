"""What the lab trains, one file each."""
