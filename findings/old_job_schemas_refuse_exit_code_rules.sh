#!/bin/sh
# A Job's podFailurePolicy with a rule on exit codes alone, against Kubernetes' published schemas.
#
# By its documentation a rule has one of `onExitCodes` and `onPodConditions`, and not both.
# kubernetes-validate 1.37.0, which has the schemas that Kubernetes publishes with each version,
# strict:
#   - 1.25 to 1.28: a rule with `onExitCodes` alone is refused, as `onPodConditions` is required; a
#     rule with both is valid.
#   - 1.29 to 1.35: a rule with `onExitCodes` alone is valid; one with both still is.
# A rule with `onPodConditions` alone is valid in all. So a manifest as the documentation has it
# fails a check against an older schema. The guess was that the rule on exit codes is valid in all
# versions, and one with both in none.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet kubernetes-validate==1.37.0
cat > "$folder/rules.py" <<'PROGRAM'
import kubernetes_validate

codes = {"onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}}
conditions = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
rules = {"codes": codes, "conditions": conditions, "both": codes | conditions}
for minor in range(25, 36):
    found = []
    for name, rule in rules.items():
        spec = {
            "podFailurePolicy": {"rules": [{"action": "FailJob", **rule}]},
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
            },
        }
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
        try:
            kubernetes_validate.validate(job, f"1.{minor}", strict=True)
            found.append(f"{name} valid")
        except kubernetes_validate.ValidationError:
            found.append(f"{name} refused")
    print(f"1.{minor}: {', '.join(found)}")
PROGRAM
"$folder/venv/bin/python" "$folder/rules.py" | tee "$folder/seen"
for minor in 25 26 27 28; do
    echo "1.$minor: codes refused, conditions valid, both valid"
done > "$folder/expected"
for minor in 29 30 31 32 33 34 35; do
    echo "1.$minor: codes valid, conditions valid, both valid"
done >> "$folder/expected"
diff "$folder/expected" "$folder/seen"
