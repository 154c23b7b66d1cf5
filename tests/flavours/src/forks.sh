#!/bin/bash
# Forks in a loop: command substitutions, pipelines, background jobs that are waited for.
n=0
while [ ! -e go ]; do
	word=$(echo $n | tr 0-9 a-j)
	back=$(echo "$word" | tr a-j 0-9)
	(exit $((n % 200))) &
	wait $!
	status=$?
	if [ "$back" != $n ] || [ $status != $((n % 200)) ]; then
		echo "result wrong: $n $back $status"
		exit 1
	fi
	n=$((n + 1))
	[ $((n % 10)) = 0 ] && echo "tick $n"
done
echo "result ok"
