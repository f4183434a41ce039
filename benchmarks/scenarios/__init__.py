"""What is measured of Raylog and its peers: each scenario takes the harness and measures its cases."""
