# A formula that builds the checkout which it lies in: brew install --HEAD ./contrib/homebrew/sinew.rb
# scripts/package.sh writes another beside the archive for Macs, which installs that one.
class Sinew < Formula
  desc "One AI computer out of the machines you already own"
  license "Apache-2.0"

  head do
    url "file://#{File.expand_path("../..", __dir__)}", using: :git, branch: "main"
    depends_on "rust" => :build
  end

  def install
    unless build.head?
      # The archive lies as it will lie below the prefix.
      prefix.install Dir["bin", "share"]
      return
    end
    system "cargo", "install", *std_cargo_args(path: "crates/cli")
    generate_completions_from_executable(bin/"sinew", "completions")
    (buildpath/"man").mkpath
    system bin/"sinew", "man", buildpath/"man"
    man1.install Dir[buildpath/"man/*.1"]
  end

  service do
    run [opt_bin/"sinew", "up"]
    keep_alive true
    log_path var/"log/sinew.log"
    error_log_path var/"log/sinew.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/sinew --version")
  end
end
