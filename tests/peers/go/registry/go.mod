module peers/registry

go 1.24.0

tool github.com/google/go-containerregistry/cmd/registry

require github.com/google/go-containerregistry v0.20.6 // indirect
