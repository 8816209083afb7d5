{{/* Fields of every pod: dict of root, component and values. Kubernetes would otherwise set HOROLOGE_* variables of its
own for Services, and services refuse unknown settings. */}}
{{- define "horologe.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: {{ .token | default false }}
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 1000 }}
  runAsGroup: {{ .user | default 1000 }}
  fsGroup: {{ .user | default 1000 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- if not (hasKey (.values.placement | default dict) "topologySpreadConstraints") }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "horologe.selector" (list .root .component) | nindent 8 }}
{{- end }}
{{- with .values.placement }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "horologe.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{/* Environment of every service: dict of root, component and settings. */}}
{{- define "horologe.environment" -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- $common := dict "links" (dict "keys" "/keys") "metrics" (dict "bind" "0.0.0.0:8002") -}}
{{- $settings := mergeOverwrite (deepCopy .root.Values.settings) $common .settings }}
{{- range $section, $fields := $settings }}
{{- range $field, $value := $fields }}
- name: HOROLOGE_{{ upper $section }}_{{ upper $field }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Probes of a service by its metrics endpoint. A frontend is ready when the models are settled. */}}
{{- define "horologe.probes" -}}
startupProbe:
  httpGet: { path: {{ .live }}, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }} }
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 150
livenessProbe:
  httpGet: { path: {{ .live }}, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }} }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: {{ .ready }}, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }} }
  periodSeconds: 2
  timeoutSeconds: 4
  failureThreshold: 2
{{- end }}

{{/* Volumes with the keys of a service: dict of root and component. The worker accepts no connections. */}}
{{- define "horologe.keyVolumes" -}}
{{- $prefix := .root.Values.keys.secrets -}}
- name: keys-service
  secret:
    secretName: {{ $prefix }}-service
    defaultMode: 0440
    items:
      - { key: service.key, path: service.key }
      {{- if ne .component "gpu-worker" }}
      - { key: service.key_secret, path: service.key_secret }
      {{- end }}
- name: keys-peers
  secret:
    secretName: {{ $prefix }}-peers
    defaultMode: 0440
    items:
      {{- if eq .component "gpu-worker" }}
      - { key: worker.key, path: worker.key }
      - { key: worker.key_secret, path: worker.key_secret }
      {{- else }}
      {{- range list "frontend" "selector" "profiler" "tuner" "worker" }}
      - { key: {{ . }}.key, path: {{ . }}.key }
      {{- end }}
      {{- if ne .component "controller" }}
      - { key: {{ .component }}.key_secret, path: {{ .component }}.key_secret }
      {{- end }}
      {{- end }}
{{- if eq .component "frontend" }}
{{- range list "clients" "management" "http" }}
- name: keys-{{ . }}
  secret: { secretName: {{ $prefix }}-{{ . }}, defaultMode: 0440 }
{{- end }}
{{- with .root.Values.frontend.tls.secret }}
- name: tls
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end }}
{{- end }}

{{- define "horologe.keyMounts" -}}
{{- $groups := list "service" "peers" -}}
{{- if eq .component "frontend" }}{{ $groups = concat $groups (list "clients" "management" "http") }}{{ end -}}
{{- range $groups }}
- { name: keys-{{ . }}, mountPath: /keys/{{ . }}, readOnly: true }
{{- end }}
{{- if and (eq .component "frontend") .root.Values.frontend.tls.secret }}
- { name: tls, mountPath: /tls, readOnly: true }
{{- end }}
{{- end }}
