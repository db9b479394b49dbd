"""What is trained when: pure Python, standard library only."""
