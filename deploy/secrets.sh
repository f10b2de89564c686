#!/bin/sh
# Make what compose.yaml asks for, in the folder `secrets` beside it or in the one that is named: for each service a
# token, and a key with a certificate that is valid for that service alone and can sign no other.
set -eu
folder=${1:-$(dirname "$0")/secrets}
mkdir -p -m 700 "$folder"
cd "$folder"
for name in registry reader sink stages console; do
  openssl rand -hex 32 > "${name}_token"
  [ "$name" != console ] || continue
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=$name" \
    -addext basicConstraints=critical,CA:FALSE -addext "subjectAltName=DNS:$name,DNS:localhost,IP:127.0.0.1" \
    -keyout "${name}_key" -out "${name}_certificate"
done
cat ./*_certificate > authorities
# Containers read the files as user 10001. Other users of this machine cannot enter the folder.
chmod 644 ./*
