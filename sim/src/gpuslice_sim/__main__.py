from gpuslice_sim.cli import main

main()
