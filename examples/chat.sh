#!/bin/sh
# A question with curl, the answer whole.
set -eu
url=${SINEW_URL:-http://127.0.0.1:8750}
model=${SINEW_MODEL:-$(curl -sf "$url/v1/models" | sed 's/.*"id": *"\([^"]*\)".*/\1/')}
curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
    "model": "'"$model"'", "temperature": 0, "max_tokens": 60,
    "messages": [{"role": "user", "content": "Who are you?"}]
}'
echo
