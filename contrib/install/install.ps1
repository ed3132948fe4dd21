# Installs Sinew for one user on Windows 10 or later; install.ps1 -Remove removes it.
# $env:SINEW_RELEASES is where the archives and SHA256SUMS lie. The archive's SHA-256 is checked; a
# signature is not. UNTRIED: nobody has run this script.
param([switch]$Remove)
$ErrorActionPreference = 'Stop'
$to = Join-Path $env:LOCALAPPDATA 'Programs\Sinew'
if ($Remove) {
    if (-not (Test-Path "$to\sinew.exe")) { throw "$to has no sinew.exe" }
    & "$to\sinew.exe" service uninstall 2>$null
    Remove-Item -Recurse -Force $to
    Write-Output "Sinew was removed from $to. Its data stay in $env:LOCALAPPDATA\Sinew."
    return
}
$releases = $env:SINEW_RELEASES
if (-not $releases) { throw 'SINEW_RELEASES is not set: no release has been published yet' }
$work = Join-Path ([IO.Path]::GetTempPath()) "sinew-install-$PID"
New-Item -ItemType Directory $work | Out-Null
try {
    Invoke-WebRequest -UseBasicParsing "$releases/SHA256SUMS" -OutFile "$work\SHA256SUMS"
    $line = Get-Content "$work\SHA256SUMS" | Where-Object { $_ -match '-x86_64-windows\.zip$' }
    if (-not $line) { throw 'SHA256SUMS names no archive for Windows' }
    $wanted, $name = @($line)[-1] -split '\s+', 2
    Invoke-WebRequest -UseBasicParsing "$releases/$name" -OutFile "$work\$name"
    $found = (Get-FileHash -Algorithm SHA256 "$work\$name").Hash
    if ($found -ne $wanted) { throw "the SHA-256 of $name is $found, and should be $wanted" }
    Expand-Archive "$work\$name" $work
    New-Item -ItemType Directory -Force $to | Out-Null
    # A program that runs cannot be replaced: sinew service uninstall
    Copy-Item -Force -Recurse "$work\$([IO.Path]::GetFileNameWithoutExtension($name))\*" $to
    & "$to\sinew.exe" --version
    Write-Output "It was installed: $to\sinew.exe. Only the SHA-256 was checked."
    Write-Output 'Add that folder to the PATH. Next: sinew up'
} finally {
    Remove-Item -Recurse -Force $work
}
