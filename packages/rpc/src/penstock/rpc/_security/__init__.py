"""What both ends prove themselves with: certificates, and files of tokens."""
