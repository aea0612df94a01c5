#!/bin/sh
# An authority for one study and the coordinator's certificate, by OpenSSL: sh certificates.sh FOLDER HOST [HOST ...]
# A host is a name or an address. ca.crt goes to everybody; ca.key is not needed again; server.key stays at the coordinator.
set -eu
folder=$1; shift
mkdir -p "$folder"; cd "$folder"
[ ! -e server.pem ] || { echo "$folder holds certificates already" >&2; exit 2; }
umask 077
names=""
for host in "$@"; do
  case $host in
    *:*) names="$names,IP:$host" ;;
    *[!0-9.]*) names="$names,DNS:$host" ;;
    *) names="$names,IP:$host" ;;
  esac
done
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -sha256 -days 1095 -subj "/CN=twofold study" -out ca.crt \
  -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"
openssl ecparam -name prime256v1 -genkey -noout -out server.key
openssl req -new -key server.key -subj "/CN=$1" -out server.csr
printf 'subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n' "${names#,}" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days 1095 -extfile server.ext -out server.crt
cat server.crt ca.crt > server.pem
rm -f server.csr server.ext server.crt ca.srl
chmod 644 ca.crt server.pem
