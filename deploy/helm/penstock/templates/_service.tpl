{{- /* The pods of a service, and its address: of a dict with the root, its name and its port. */ -}}

{{- define "penstock.selector" -}}
app: penstock-{{ .name }}
{{- end }}

{{- define "penstock.template" -}}
{{- $own := index .root.Values .name -}}
{{- $prefix := printf "PENSTOCK_%s" (upper .name) -}}
metadata:
  labels:
    {{- include "penstock.selector" . | nindent 4 }}
    part-of: penstock
spec:
  serviceAccountName: penstock
  terminationGracePeriodSeconds: 30
  securityContext: {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001}
  {{- with $own.pod }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ printf "%spenstock-%s:%s" .root.Values.image.prefix .name (default .root.Chart.AppVersion .root.Values.image.tag) | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      env:
        - {name: {{ $prefix }}_REGION, value: {{ .root.Values.region }}}
        {{- range $flag, $value := $own.settings }}
        - {name: {{ $prefix }}_{{ $flag | replace "-" "_" | upper }}, value: {{ $value | quote }}}
        {{- end }}
        - {name: {{ $prefix }}_TOKEN_FILE, value: /run/penstock/tokens/{{ .name }}}
        - {name: {{ $prefix }}_CERTIFICATE_FILE, value: /run/penstock/tls/tls.crt}
        - {name: {{ $prefix }}_PRIVATE_KEY_FILE, value: /run/penstock/tls/tls.key}
      ports: [{name: grpc, containerPort: {{ .port }}}]
      {{- range list "livenessProbe" "readinessProbe" }}
      {{ . }}:
        exec: {command: [/opt/penstock/bin/python, -m, penstock.rpc.health, --prefix, {{ $prefix }}]}
        periodSeconds: 10
        timeoutSeconds: 8
      {{- end }}
      resources:
        {{- toYaml $own.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: tokens, mountPath: /run/penstock/tokens, readOnly: true}
        - {name: tls, mountPath: /run/penstock/tls, readOnly: true}
        - {name: tmp, mountPath: /tmp}
  volumes:
    - {name: tokens, secret: {secretName: {{ .root.Values.secrets.tokens }}, defaultMode: 0440}}
    - {name: tls, secret: {secretName: {{ .root.Values.secrets.tls }}, defaultMode: 0440}}
    - {name: tmp, emptyDir: {}}
{{- end }}

{{- define "penstock.address" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
spec:
  {{- with .headless }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  selector:
    {{- include "penstock.selector" . | nindent 4 }}
  ports: [{name: grpc, port: {{ .port }}, targetPort: grpc}]
{{- end }}
